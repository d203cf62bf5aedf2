"""The fused kernel that merges partial results, against the same in plain torch."""

import math

import pytest
import torch

from attnspec.support.merging import merge_partials

INF, NAN = math.inf, math.nan


@pytest.mark.gpu
def test_the_fused_kernel_agrees_with_plain_torch():
    generator = torch.Generator().manual_seed(0)
    for dtype, head_dim in ((torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 80)):
        outs = [torch.randn(2, 37, 5, head_dim, generator=generator).to(dtype) for _ in range(2)]
        lses = [torch.randn(5, 2, 37, generator=generator).permute(1, 2, 0) * 10 for _ in range(2)]
        lses[0][:, 3], lses[1][:, 4], lses[1][:, 5] = -INF, INF, -INF
        lses[0][:, 5] = INF
        outs[0][:, 3] = NAN
        wanted_out, wanted_lse = outs[0].clone(), lses[0].clone()
        merge_partials(wanted_out, wanted_lse, outs[1], lses[1])
        out, lse = outs[0].cuda(), lses[0].cuda()
        merge_partials(out, lse, outs[1].cuda(), lses[1].cuda())
        torch.testing.assert_close(out.cpu(), wanted_out)
        torch.testing.assert_close(lse.cpu(), wanted_lse)


@pytest.mark.gpu
def test_what_one_warp_writes_no_other_has_yet_to_read():
    """In place over many rows: each must be merged once, whatever the order in which warps run."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (1, 8192, 64, 128)
    outs = [torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(2)]
    # As kernels return it: (B, N, T), seen as (B, T, N).
    lses = [torch.randn(1, 64, 8192, generator=generator, device="cuda").transpose(1, 2) for _ in range(2)]
    share = torch.sigmoid(lses[0] - lses[1])[..., None]
    wanted_out = outs[0].float() * share + outs[1].float() * (1 - share)
    wanted_lse = torch.logaddexp(*lses)
    for _ in range(20):
        out, lse = outs[0].clone(), lses[0].clone()
        merge_partials(out, lse, outs[1], lses[1])
        torch.testing.assert_close(out.float(), wanted_out, rtol=2**-8, atol=1e-3)
        torch.testing.assert_close(lse, wanted_lse)
