"""A ring's steps on two streams give bit for bit what they give on one, whatever the allocator does meanwhile."""

import pytest
import torch

from attnspec.exchange.accumulate import Outputs
from attnspec.exchange.lanes import Lanes, use

# Libraries and compilers warn of their own affairs, which the suite would turn into failures.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
STEPS, ROWS, KEYS, HEADS, WIDTH = 8, 512, 256, 8, 128


def partial(q_BTND, kv):
    scores = torch.einsum("btnd,bsnd->btns", q_BTND.float(), kv[0].float()) / WIDTH**0.5
    lse_BTN = scores.logsumexp(dim=-1)
    return torch.einsum("btns,bsnd->btnd", (scores - lse_BTN[..., None]).exp(), kv[1].float()).to(q_BTND.dtype), lse_BTN


def forward(q_BTND, parts, *, overlapped):
    """As Ring.forward does it; the keys of each step come into memory of the lane before."""
    outputs, earlier = Outputs(q_BTND, many=True), None
    coming, came = parts[0].clone(), None
    with Lanes(q_BTND, overlapped=overlapped) as lanes:
        for step in range(STEPS):
            with lanes.on(step):
                if came is not None:
                    came.wait()
                kv = coming
                if step + 1 < STEPS:
                    coming = parts[step + 1].clone()
                    came = torch.cuda.current_stream().record_event()
                use(kv)
                made = partial(q_BTND, kv)
            del kv
            if earlier is not None:
                with lanes.in_turn(step - 1):
                    outputs.add(*earlier, slice(0, ROWS), whole=True)
            earlier = made
        with lanes.in_turn(STEPS - 1):
            outputs.add(*earlier, slice(0, ROWS), whole=True)
    return outputs.result()


def test_two_streams_give_what_one_gives():
    generator = torch.Generator("cuda").manual_seed(0)
    q_BTND = torch.randn(1, ROWS, HEADS, WIDTH, generator=generator, device="cuda").bfloat16()
    parts = torch.randn(STEPS, 2, 1, KEYS, HEADS, WIDTH, generator=generator, device="cuda").bfloat16()
    wanted = [one.clone() for one in forward(q_BTND, parts, overlapped=False)]
    for _ in range(30):
        got = forward(q_BTND, parts, overlapped=True)
        assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
