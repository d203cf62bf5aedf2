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
