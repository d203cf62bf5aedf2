"""The calls of torch's CUDA operators, checked by torch itself on tensors without memory (device meta): arity, types,
shapes. Values are checked on a GPU, by the verification of every case."""

import pytest
import torch

from attnspec.kernels._aten import Cudnn, Efficient, FlashCuda, FlashPacked

BATCH, ROWS, KEYS, HEADS, KV_HEADS, DIM = 2, 40, 56, 4, 2, 16


def meta(heads, length):
    """(B, heads, length, D) over canonical memory."""
    return torch.empty(BATCH, length, heads, DIM, dtype=torch.bfloat16, device="meta").transpose(1, 2)


def packed(causal):
    lengths = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device="meta") for n in (ROWS, KEYS)]
    return FlashPacked(causal, BATCH, *lengths, ROWS, KEYS)


def bias():
    return torch.zeros(ROWS, 64, dtype=torch.bfloat16, device="meta")[:, :KEYS]


@pytest.mark.parametrize(
    ("make", "kv_heads", "lse_shape"),
    [
        (lambda: FlashCuda(True, "meta"), KV_HEADS, (BATCH, HEADS, ROWS)),
        (lambda: packed(True), KV_HEADS, (HEADS, BATCH * ROWS)),
        (lambda: packed(False), KV_HEADS, (HEADS, BATCH * ROWS)),
        (lambda: Cudnn(True, None, "meta"), KV_HEADS, (BATCH, HEADS, ROWS, 1)),
        (lambda: Cudnn(False, bias(), "meta"), KV_HEADS, (BATCH, HEADS, ROWS, 1)),
        (lambda: Efficient(2, None), HEADS, (BATCH, HEADS, 64)),
        (lambda: Efficient(0, bias()), HEADS, (BATCH, HEADS, 64)),
    ],
)
def test_operators_take_and_give_what_the_kernel_expects(make, kv_heads, lse_shape):
    operator = make()
    q, k, v, dout = meta(HEADS, ROWS), meta(kv_heads, KEYS), meta(kv_heads, KEYS), meta(HEADS, ROWS)
    out, lse = operator.forward(q, k, v)
    assert out.shape == q.shape
    assert out.transpose(1, 2).is_contiguous()  # canonical memory: bringing it back copies nothing
    assert lse.shape == lse_shape
    canonical = operator.lse_out(lse, ROWS)
    assert canonical.shape == (BATCH, HEADS, ROWS)
    merged = operator.lse_in(torch.empty(BATCH, HEADS, ROWS, device="meta"))
    assert merged.shape == lse.shape
    for given in (lse, merged):
        grads = operator.backward(dout, q, k, v, out, given)
        assert [grad.shape for grad in grads] == [q.shape, k.shape, v.shape]


def test_lse_keeps_its_values_through_each_layout():
    lse = torch.randn(BATCH, HEADS, ROWS)
    operators = [Cudnn(True, None, "cpu"), Efficient(0, None), FlashCuda(True, "cpu")]
    lengths = torch.tensor([0, ROWS, 2 * ROWS], dtype=torch.int32)
    for operator in (*operators, FlashPacked(True, BATCH, lengths, lengths, ROWS, ROWS)):
        assert torch.equal(operator.lse_out(operator.lse_in(lse), ROWS), lse)
    padded = Efficient(0, None).lse_in(lse)
    assert padded[..., ROWS:].isposinf().all()  # weight 0
