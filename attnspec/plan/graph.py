"""The DAG of a plan as networkx, and as text. Pure.

Node keys are content ids with their stage in front; the only attribute is `stage`, since 10^5 nodes are usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnspec.params import switches_said
from attnspec.plan.identity import collect_id
from attnspec.plan.model import Plan
from attnspec.units import format_count

if TYPE_CHECKING:
    import networkx as nx


def build_graph(plan: Plan) -> nx.DiGraph:
    """Every node and edge of `plan`: sample -> mask -> run -> collect."""
    import networkx as nx

    graph = nx.DiGraph(name=plan.name)
    graph.add_nodes_from((f"sample:{node}" for node in plan.samples), stage="sample")
    graph.add_nodes_from((f"mask:{node}" for node in plan.masks), stage="mask")
    graph.add_nodes_from((f"run:{case.case_id}" for case in plan.cases), stage="run")
    graph.add_edges_from((f"sample:{node.sample.sample_id}", f"mask:{node.mask_id}") for node in plan.masks.values())
    graph.add_edges_from((f"mask:{case.workload.mask_node.mask_id}", f"run:{case.case_id}") for case in plan.cases)
    collect = f"collect:{collect_id(case.case_id for case in plan.cases)}"
    graph.add_node(collect, stage="collect")
    graph.add_edges_from((f"run:{case.case_id}", collect) for case in plan.cases)
    return graph


def count_nodes(plan: Plan) -> dict[str, int]:
    """Nodes of each stage, without building the graph."""
    return {"sample": len(plan.samples), "mask": len(plan.masks), "run": len(plan.cases), "collect": 1}


def labels(plan: Plan) -> dict[str, str]:
    """Node key -> a line for people."""
    named = {
        f"sample:{key}": f"{node.lengths or 'one document'} {format_count(node.seqlen)} x {node.num_packs}"
        for key, node in plan.samples.items()
    }
    named |= {
        f"mask:{key}": f"{node.mask}{_parameters(node.params)} {format_count(node.seqlen_q)}"
        for key, node in plan.masks.items()
    }
    for case in plan.cases:
        asked = case.implementation
        who = asked.kernel if asked.strategy is None else f"{asked.strategy} ({asked.kernel}) x {case.cp_size}"
        settings = (asked.backend, switches_said(asked.kernel_params), case.pass_)
        named[f"run:{case.case_id}"] = " ".join((who, *filter(None, settings)))
    named[f"collect:{collect_id(case.case_id for case in plan.cases)}"] = "cells.parquet"
    return named


def dot_lines(plan: Plan) -> Iterator[str]:
    """The whole graph in Graphviz's language, line by line."""
    yield f"digraph {_quoted(plan.name)} {{\n"
    yield "  rankdir=LR;\n  node [shape=box, style=rounded];\n"
    for key, label in labels(plan).items():
        yield f"  {_quoted(key)} [label={_quoted(label)}];\n"
    for source, target in plan.graph.edges:
        yield f"  {_quoted(source)} -> {_quoted(target)};\n"
    yield "}\n"


def node_link(plan: Plan) -> dict[str, Any]:
    """The whole graph as networkx's node-link data (`networkx.node_link_graph(..., edges="edges")` reads it)."""
    named = labels(plan)
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": plan.name},
        "nodes": [{"id": key, "stage": stage, "label": named[key]} for key, stage in plan.graph.nodes(data="stage")],
        "edges": [{"source": source, "target": target} for source, target in plan.graph.edges],
    }


def _parameters(params: Any) -> str:
    return f"({', '.join(f'{name}={value}' for name, value in params.items())})" if params else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
