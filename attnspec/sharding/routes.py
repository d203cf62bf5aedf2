"""The way of keys and values round a ring, and of their gradients back. Pure.

Ring Attention (Liu et al. 2023): at step s place r works on the keys of place r - s, which it got from place r - 1. In
the double ring of LoongTrain (Gu et al. 2024, section 4.3) the places form windows: inside a window keys go round an
inner ring, and while they do, the next window's keys come over the outer ring from the same place of the window before.

The keys of one place thus travel along a tree. It is cut where nobody further on needs them. Gradients travel it
backwards and are added up on the way. The last places of the tree keep the keys of the forward, so the backward, whose
steps run in reverse order, starts without waiting and its last step works on the own keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Channel(IntEnum):
    """Transfers of one channel do not wait for those of another."""

    INNER = 0
    OUTER = 1
    HEADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What `source` sends to `target`: keys and values of place `owner`, or gradients of them.

    start: the step of both at whose beginning it may start. due: the target's step that needs it, gradients at its end,
    keys at its beginning. In the backward steps count down. added: gradients that are a sum already.
    """

    source: int
    target: int
    owner: int
    start: int
    due: int
    channel: Channel
    added: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """All transfers of a ring of `num_places` in windows of `window` places.

    held: bool (places, steps), whether a place has the keys of its step (because it or somebody after it needs them).
    kept: whether it is the last place that has them. Steps go from 0, the own keys, to num_places - 1.
    """

    num_places: int
    window: int
    held: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    forward: tuple[Transfer, ...]
    backward_keys: tuple[Transfer, ...]
    backward_grads: tuple[Transfer, ...]

    def owner(self, place: int, step: int) -> int:
        """Whose keys a place works on."""
        return owner(place, step, self.num_places, self.window)


def owner(place: int, step: int, num_places: int, window: int) -> int:
    """Whose keys `place` works on at `step`.

    >>> [owner(1, step, 4, 4) for step in range(4)], [owner(1, step, 4, 2) for step in range(4)]
    ([1, 0, 3, 2], [1, 0, 3, 2])
    >>> [owner(0, step, 4, 2) for step in range(4)], [owner(0, step, 4, 1) for step in range(4)]
    ([0, 1, 2, 3], [0, 3, 2, 1])
    """
    outer, inner = divmod(step, window)
    of_window, in_window = divmod(place, window)
    return (of_window - outer) % (num_places // window) * window + (in_window - inner) % window


def routes(needs: NDArray[np.bool_], window: int | None = None) -> Routes:
    """The routes of a ring whose place i needs the keys of place j where needs[i, j].

    window: places of an inner ring, a divisor of the ring's places; without it there is one ring.

    >>> everybody = routes(np.ones((3, 3), dtype=bool))
    >>> [(one.source, one.target, one.owner, one.due) for one in everybody.forward if one.target == 0]
    [(2, 0, 2, 1), (2, 0, 1, 2)]
    """
    num_places = len(needs)
    window = num_places if window is None else window
    assert num_places % window == 0, (num_places, window)
    held = np.zeros((num_places, num_places), dtype=bool)
    children: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step in reversed(range(num_places)):
        for place in range(num_places):
            below = [node for node in _children(place, step, num_places, window) if held[node]]
            held[place, step] = bool(needs[place, owner(place, step, num_places, window)]) or bool(below) or step == 0
            children[place, step] = below
    kept = np.zeros_like(held)
    forward, keys, grads = [], [], []
    for (place, step), below in sorted(children.items(), key=lambda item: (item[0][1], item[0][0])):
        if not held[place, step]:
            continue
        kept[place, step] = step > 0 and not below
        if step == 0:
            continue
        of = owner(place, step, num_places, window)
        parent, parent_step, channel = _parent(place, step, num_places, window)
        forward.append(Transfer(source=parent, target=place, owner=of, start=parent_step, due=step, channel=channel))
        grads.append(
            Transfer(
                source=place,
                target=parent,
                owner=of,
                start=step - 1,
                due=parent_step,
                channel=channel,
                added=bool(below),
            )
        )
        if below:
            child, child_step = min(below, key=lambda node: node[1])
            child_channel = _parent(child, child_step, num_places, window)[2]
            keys.append(
                Transfer(source=child, target=place, owner=of, start=child_step, due=step, channel=child_channel)
            )
    return Routes(
        num_places=num_places,
        window=window,
        held=held,
        kept=kept,
        forward=tuple(forward),
        backward_keys=tuple(keys),
        backward_grads=tuple(grads),
    )


def _parent(place: int, step: int, num_places: int, window: int) -> tuple[int, int, Channel]:
    """From whom a place gets the keys of a step, that place's step, and the channel."""
    of_window, in_window = divmod(place, window)
    if step % window:
        return of_window * window + (in_window - 1) % window, step - 1, Channel.INNER
    return (place - window) % num_places, step - window, Channel.OUTER


def _children(place: int, step: int, num_places: int, window: int) -> list[tuple[int, int]]:
    """To whom a place may hand the keys of a step on, and their steps."""
    of_window, in_window = divmod(place, window)
    found = []
    if step % window < window - 1:
        found.append((of_window * window + (in_window + 1) % window, step + 1))
    if step % window == 0 and step + window < num_places:
        found.append(((place + window) % num_places, step + window))
    return found
