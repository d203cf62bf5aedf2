"""attnspec flops: the FLOPs of attention over a mask, exact."""

from __future__ import annotations

import json

import click

from attnspec.cli._mask_options import mask_options, named_mask
from attnspec.cli._whole_number import whole_number
from attnspec.flops import attention_flops
from attnspec.shape import PASSES
from attnspec.slices import area

_SIZE = whole_number(1, 2**31 - 1)


@click.command("flops")
@click.option("--mask", "name", required=True, metavar="NAME", help="A mask, such as causal.")
@mask_options
@click.option("--heads-q", type=_SIZE, required=True, metavar="H", help="Query heads; key heads do not count.")
@click.option("--head-dim", type=_SIZE, required=True, metavar="D", help="Elements of a head.")
@click.option("--batch", type=_SIZE, default=1, show_default=True, metavar="B", help="Sequences with this mask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with exact integers.")
def command(
    name: str,
    seqlen: str | None,
    docs: str | None,
    params: tuple[str, ...],
    heads_q: int,
    head_dim: int,
    batch: int,
    as_json: bool,
) -> None:
    """Count the FLOPs of attention over a mask.

    fwd is 4 x area x batch x query heads x head dimension, bwd 2.5 fwd (it recomputes the scores), fwd_bwd 3.5 fwd. The
    area is the exact number of allowed cells, so what a mask forbids does not count.
    """
    mask = named_mask(name, seqlen, docs, params)
    num_cells = area(mask.slices)
    flops = {pass_: attention_flops(num_cells, batch, heads_q, head_dim, pass_) for pass_ in PASSES}
    if as_json:
        click.echo(json.dumps({"area": num_cells, **flops}))
        return
    click.echo(mask.title)
    width = max(len(str(count)) for count in (num_cells, *flops.values()))
    click.echo(f"area     {num_cells:>{width}} cells")
    for pass_, count in flops.items():
        click.echo(f"{pass_:<7}  {count:>{width}} FLOPs = {count / 1e12:.6g} TFLOPs")
