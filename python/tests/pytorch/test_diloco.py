"""Training with outer steps: as good as data parallel training, and it goes on when a rank dies or comes."""

import diloco_bodies as bodies
from torch_ranks import Ranks

#: Tests of 300 digits that may differ from plain data parallel training.
TOLERANCE = 0.03


def test_it_learns_like_data_parallel_training_and_survives_a_lost_rank(ranks: Ranks) -> None:
    (plain,) = ranks.run(1, bodies.together, 3, init=None)
    first, killed, third, joined = ranks.run(4, bodies.apart, init=None, may_die=(1,))
    assert "ended with -9" in killed
    assert first == third == joined
    size, accuracy, _, steps = first
    assert (size, steps) == (3, 32)
    assert plain > 0.9 and accuracy > plain - TOLERANCE, (accuracy, plain)
