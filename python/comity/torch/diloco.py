"""DiLoCo: each rank trains by itself, and now and then all average how far they have come. For slow links, and ranks that come and go."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from comity._group import Group
from comity.errors import PeerLostError


class DiLoCo:
    """Outer steps for parameters that each rank trains with an optimizer of its own.

    Call `step` after each step of your optimizer. Between two outer steps nothing is sent. Every `every` steps the ranks average how far
    the parameters have moved since the last time, and Nesterov's momentum carries that average on (Douillard et al., 2023). With
    `fragments` the parameters are cut into so many parts, one of which has its turn every ``every / fragments`` steps: less is sent at
    once.

    When a rank dies the others form their group again (`Group.reform`), and the outer step is made with those that are left. When a process
    waits to be taken in, the next outer step takes it in. `group` is always the group of now. A rank waits in `reform` until the others
    come to their next outer step, so let the group's timeout be longer than `every` steps take.

    Every rank gives the same parameters in the same order; those of rank 0 are where all begin. The values that layers note for
    themselves, such as the averages of a BatchNorm, are not averaged.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        group: Group,
        *,
        every: int = 50,
        fragments: int = 1,
        rate: float = 0.7,
        momentum: float = 0.9,
        joins: bool = False,
    ) -> None:
        """Agree with the other ranks on the parameters.

        Args:
            parameters: Those to be trained, as for an optimizer.
            group: The ranks that train.
            every: Steps between two outer steps of a parameter; a multiple of `fragments`.
            fragments: Parts that have their turns one after the other.
            rate: Learning rate of outer steps.
            momentum: Their momentum.
            joins: This process has joined a job that runs, and takes the state of the others.
        """
        self.parameters = [p for p in parameters if p.requires_grad]
        if fragments < 1 or every < 1 or every % fragments or fragments > len(self.parameters):
            raise ValueError(
                f"{every} steps and {fragments} fragments: `every` is a multiple of `fragments`, of which there are 1 to "
                f"{len(self.parameters)}, a parameter each"
            )
        self.group = group
        self.rate, self.momentum = rate, momentum
        self._interval = every // fragments
        self._fragments = self._cut(fragments)
        self._anchors = [_flat(part) for part in self._fragments]
        self._speeds = [torch.zeros_like(anchor) for anchor in self._anchors]
        #: Steps of this rank, and outer steps of all.
        self._steps, self._outer = 0, -1 if joins else 0
        #: This rank has trained since it took over what others have.
        self._has_moved = False
        self._agree()

    @property
    def outer_steps(self) -> int:
        """How many outer steps have been made."""
        return self._outer

    def step(self) -> bool:
        """Count a step of the optimizer; make an outer step where it is time for one. True if it was."""
        self._steps += 1
        self._has_moved = True
        before = self._outer
        # After a reform it may be the others' step that this rank makes.
        while self._outer < self._steps // self._interval:
            try:
                if self._outer_step():
                    self._form_again()
            except PeerLostError:
                self._form_again()
        return self._outer > before

    def settle(self) -> None:
        """Set the parameters to those of the last outer steps, which are the same on all ranks: at the end, or to save them."""
        self._has_moved = False
        for part, anchor in zip(self._fragments, self._anchors, strict=True):
            _fill(part, anchor)

    def _outer_step(self) -> bool:
        """Make one; true if a process waits to be taken in."""
        turn = self._outer % len(self._fragments)
        anchor, speed = self._anchors[turn], self._speeds[turn]
        moved = anchor - _flat(self._fragments[turn])
        # A rank that has only just taken over the state has not moved, and does not count.
        weight = float(self._has_moved)
        told = torch.tensor([weight, float(self.group.joiners())])
        total = torch.cat([moved * weight, told])
        self.group.all_reduce(total, out=total)
        average = total[:-2] / total[-2].clamp(min=1.0)
        speed.mul_(self.momentum).add_(average)
        anchor.sub_(average + self.momentum * speed, alpha=self.rate)
        _fill(self._fragments[turn], anchor)
        self._outer += 1
        return bool(total[-1] > 0)

    def _form_again(self) -> None:
        """Go on in the group of those that are left, and those that have come."""
        while True:
            self.group = self.group.reform().group
            try:
                return self._agree()
            except PeerLostError:
                continue

    def _agree(self) -> None:
        """Give all ranks the state of those that are furthest."""
        furthest = self.group.all_max(self._outer)
        holds = self._outer == furthest
        first = furthest == 0 and self._steps == 0
        state = [*self._anchors, *self._speeds]
        *_, steps = self.group.sync([*state, self._steps], holds=holds)
        self._outer = furthest
        if holds and not first:
            return
        self._steps = steps
        self.settle()

    def _cut(self, fragments: int) -> list[list[Tensor]]:
        """The parameters in so many runs of about the same size, each with one at least."""
        parts: list[list[Tensor]] = [[] for _ in range(fragments)]
        whole = sum(p.numel() for p in self.parameters)
        done, at = 0, 0
        for i, parameter in enumerate(self.parameters):
            left = len(self.parameters) - i
            is_full = done >= whole * (at + 1) / fragments or left < fragments - at
            if parts[at] and is_full and at + 1 < fragments:
                at += 1
            parts[at].append(parameter)
            done += parameter.numel()
        return parts


def _flat(part: list[Tensor]) -> Tensor:
    """A copy of these parameters, one after the other, in host memory."""
    return torch.cat([p.detach().flatten().to("cpu", torch.float32) for p in part])


def _fill(part: list[Tensor], flat: Tensor) -> None:
    """Set these parameters."""
    with torch.no_grad():
        for parameter, values in zip(part, flat.split([p.numel() for p in part]), strict=True):
            parameter.copy_(values.view_as(parameter))
