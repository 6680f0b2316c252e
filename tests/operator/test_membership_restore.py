"""Where an epoch takes its state from: the rule that must never lose work silently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainingrun.membership.restore import Blocked, choose_restore, memory_name
from trainingrun.protocol.messages import DurableCheckpoint, HeldSnapshot
from trainingrun.protocol.records import Restore, RestoreSource

LAYOUT = (2, 2, 1)
ALL = tuple((p, s, 0) for p in range(2) for s in range(2))


def held(epoch: int, step: int, *pieces: tuple[int, int, int]) -> HeldSnapshot:
    return HeldSnapshot(epoch, step, LAYOUT, pieces)


def durable(epoch: int, step: int) -> DurableCheckpoint:
    return DurableCheckpoint(f"step-{step:08d}.e{epoch:04d}", epoch, step)


def choose(by_slot, saved, damaged, known, *, fresh=None):
    """`fresh`: omitted, as it follows from the checkpoints that are there."""
    fresh = not saved if fresh is None else fresh
    return choose_restore(by_slot, saved, damaged, known, fresh=fresh, location="file:///c")


def test_pieces_on_different_nodes_make_one_whole_snapshot():
    chosen = choose({0: [held(3, 10, *ALL[:2])], 2: [held(3, 10, *ALL[2:])]}, [], [], [])
    assert chosen == Restore(RestoreSource.MEMORY, 10, 3, layout=LAYOUT, holders=(0, 2))


def test_a_snapshot_with_a_missing_piece_does_not_count():
    chosen = choose(
        {0: [held(3, 11, *ALL[:3]), held(3, 10, *ALL[:2])], 1: [held(3, 10, *ALL[2:])]}, [], [], []
    )
    assert (chosen.source, chosen.step) == (RestoreSource.MEMORY, 10)


def test_pieces_of_different_layouts_are_never_mixed():
    other = HeldSnapshot(3, 10, (1, 2, 2), ALL[2:])
    assert choose({0: [held(3, 10, *ALL[:2])], 1: [other]}, [], [], []).source is RestoreSource.INITIAL


def test_memory_is_preferred_at_the_same_step_and_durable_when_it_is_newer():
    memory = {0: [held(3, 10, *ALL)]}
    assert choose(memory, [durable(3, 10)], [], []).source is RestoreSource.MEMORY
    assert choose(memory, [durable(3, 12)], [], []).source is RestoreSource.DURABLE


def test_the_newest_epochs_lineage_wins_over_a_higher_step_of_an_older_epoch():
    chosen = choose({0: [held(3, 500, *ALL)]}, [durable(4, 450)], [], [])
    assert (chosen.source, chosen.manifest) == (RestoreSource.DURABLE, "step-00000450.e0004")


def test_a_snapshot_that_failed_its_checksums_is_not_used_again_but_its_durable_twin_is():
    chosen = choose({0: [held(3, 10, *ALL)]}, [durable(3, 10)], [memory_name(3, 10)], [])
    assert chosen.source is RestoreSource.DURABLE


def test_fresh_weights_only_when_no_checkpoint_was_ever_known():
    assert choose({}, [], [], []) == Restore(RestoreSource.INITIAL)
    blocked = choose({}, [durable(1, 5)], [durable(1, 5).name], [durable(1, 5).name, "gone"])
    assert isinstance(blocked, Blocked)
    assert "committed at file:///c, but none can be used (damaged: step-00000005.e0001; " in blocked.reason
    assert "not there any more: gone); hint: put back what is missing and the run goes on;" in blocked.reason


def test_a_location_that_is_empty_but_not_fresh_blocks_even_who_remembers_nothing():
    blocked = choose({}, [], [], [], fresh=False)
    assert isinstance(blocked, Blocked)
    assert "none is there any more; hint: put back what is missing" in blocked.reason


def test_what_is_damaged_cannot_be_put_back_so_the_fix_is_a_new_run():
    blocked = choose({}, [], [durable(1, 5).name], [])
    assert isinstance(blocked, Blocked)
    assert blocked.reason.endswith("); hint: a new run with another location starts afresh")


def test_a_damaged_snapshot_says_nothing_of_the_location():
    assert choose({}, [], [memory_name(1, 5)], []).source is RestoreSource.INITIAL


def test_a_long_list_of_lost_checkpoints_is_cut_short():
    blocked = choose({}, [], [], [f"step-{n}" for n in range(5)])
    assert isinstance(blocked, Blocked)
    assert "step-4, step-3, step-2 and 2 more" in blocked.reason


POSITIONS = st.tuples(st.integers(1, 4), st.integers(0, 6))


@given(
    snapshots=st.lists(st.tuples(st.integers(0, 3), POSITIONS, st.sets(st.sampled_from(ALL))), max_size=12),
    saved=st.lists(POSITIONS, max_size=6),
    damaged=st.lists(POSITIONS, max_size=6),
    forgotten=st.lists(POSITIONS, max_size=2),
)
def test_the_choice_is_whole_undamaged_and_the_newest(snapshots, saved, damaged, forgotten):
    by_slot: dict[int, list[HeldSnapshot]] = {}
    whole: dict[tuple[int, int], set] = {}
    for slot, position, pieces in snapshots:
        by_slot.setdefault(slot, []).append(held(*position, *sorted(pieces)))
        whole.setdefault(position, set()).update(pieces)
    bad = {durable(*position).name for position in damaged}
    known = {durable(*position).name for position in [*saved, *forgotten]}
    chosen = choose(by_slot, [durable(*position) for position in saved], bad, known)
    usable = {position for position, pieces in whole.items() if pieces == set(ALL)}
    usable |= {position for position in saved if durable(*position).name not in bad}
    if usable:
        assert isinstance(chosen, Restore)
        assert (chosen.epoch, chosen.step) == max(usable)
    else:
        assert isinstance(chosen, Blocked) == bool(known or bad)


def pipeline_of(nodes: int, epoch: int, step: int, *stages: int) -> HeldSnapshot:
    return HeldSnapshot(epoch, step, (nodes, 1, 1), tuple((stage, 0, 0) for stage in stages))


@given(st.data())
def test_what_buddies_keep_counts_as_their_owner_s_and_the_newest_that_is_whole_wins(data):
    """Each node has a stage, and keeps that of the next one of some steps; any of them may be gone."""
    nodes = data.draw(st.integers(2, 5))
    steps = st.sets(st.sampled_from([(2, 5), (3, 6), (3, 7), (3, 8)]))
    own = [data.draw(steps) for _ in range(nodes)]
    kept = [data.draw(steps) for _ in range(nodes)]  # by node, of the next one
    alive = sorted(data.draw(st.sets(st.integers(0, nodes - 1), min_size=1)))
    reports = {
        node: [
            pipeline_of(nodes, *snapshot, *stages)
            for snapshot in sorted(own[node] | kept[node])
            if (stages := [node] * (snapshot in own[node]) + [(node + 1) % nodes] * (snapshot in kept[node]))
        ]
        for node in alive
    }

    def has(stage: int, snapshot: tuple[int, int]) -> bool:
        keeper = (stage - 1) % nodes
        return (stage in alive and snapshot in own[stage]) or (keeper in alive and snapshot in kept[keeper])

    whole = [one for one in set().union(*own, *kept) if all(has(stage, one) for stage in range(nodes))]
    chosen = choose(reports, [], [], [])
    if not whole:
        assert chosen.source is RestoreSource.INITIAL
    else:
        assert (chosen.source, chosen.epoch, chosen.step) == (RestoreSource.MEMORY, *max(whole))
        assert set(chosen.holders) <= set(alive)
