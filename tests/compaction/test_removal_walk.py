"""The coordination of removal as a whole: random walks, and each of its rules broken in a set piece.

`python -m tests.compaction.removal_walk SEEDS STEPS [RULE...]` makes more walks, and breaks rules in them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.statemachine.machine import Corruption
from tests.compaction.removal_rules import RULES
from tests.compaction.removal_walk import Broken, Walk, walk

K, OTHER = 1, 2
ALL = (1, 2, 3)


def cleaned(each: Walk, *nodes: int) -> None:
    """Have these nodes ingest and clean what there is: all but a last record, which comes behind it."""
    each.lift()
    each.write(OTHER)
    each.lift()
    for node in nodes:
        each.catch_up(node)
        while each.logs[node].end < each.now.reconciled:
            each.ingest(node, most=1000)
        each.clean(node)
    each.check()


def published(each: Walk, *, apart: bool = False) -> None:
    each.publish(apart=apart)
    each.check()


def written(each: Walk, records: int = 10) -> None:
    """Write a value of K, and others behind it."""
    each.write(K)
    for _ in range(records):
        each.write(OTHER)


def deleted(each: Walk) -> int:
    """Delete K, and write others behind that."""
    offset = each.write(K, deleted=True)
    for _ in range(5):
        each.write(OTHER)
    return offset


def all_clean(each: Walk) -> None:
    """Every copy is clean past a value of K, and that is in force."""
    written(each)
    cleaned(each, *ALL)
    published(each)
    each.talk(20)
    assert each.now.mtro > 0


def a_stopped_replica_holds_its_deletions(each: Walk) -> None:
    """Schedule 1."""
    all_clean(each)
    each.switch(3, up=False)
    tombstone = deleted(each)
    cleaned(each, 1, 2)
    written_before = each.now.mtro
    published(each)
    each.talk(30)
    assert each.now.mtro == written_before
    assert tombstone in each.logs[1].records
    each.switch(3, up=True)
    each.lead(3)
    cleaned(each, 3)
    each.talk(30)
    cleaned(each, *ALL)
    assert each.now.ripe > tombstone
    assert tombstone not in each.logs[3].records
    assert each.logs[3].resets == 0


def level_one_holds_what_it_is_not_clean_of(each: Walk) -> None:
    written(each)
    deleted(each)
    cleaned(each, *ALL)
    each.talk(30)
    assert each.now.mtro == 0
    assert each.proposed == 0


def a_less_clean_leader_publishes_nothing(each: Walk) -> None:
    """Schedule 5."""
    written(each)
    cleaned(each, *ALL)
    written(each)
    cleaned(each, 1)
    published(each, apart=True)
    clean = each.log.machine.removals.level_one_clean
    assert each.logs[2].clean < clean == each.logs[1].clean
    each.lead(2)
    published(each)
    assert each.log.machine.removals.level_one_clean == clean


def old_files_that_come_back_are_made_again(each: Walk) -> None:
    """Schedules 6 and 8."""
    all_clean(each)
    each.switch(3, up=False)
    each.leave(3)
    tombstone = deleted(each)
    cleaned(each, 1, 2)
    published(each)
    each.talk(30)
    assert each.now.ripe > tombstone
    cleaned(each, 1, 2)
    published(each)
    assert tombstone not in each.level_one(each.now)
    each.join(3)
    cleaned(each, 3)
    each.talk(10)
    assert each.logs[3].resets == 1


def a_lower_word_counts(each: Walk) -> None:
    """Schedule 10."""
    all_clean(each)
    each.talk(5)
    written(each)
    cleaned(each, *ALL)
    each.talk(3)
    each.lose_files(3)
    each.talk(3)
    before = each.now.mtro
    for _ in range(4):
        each.write(OTHER)
        cleaned(each, 1, 2)
        published(each)
        each.talk(8)
    assert each.now.mtro == before == each.logs[3].ends.mcco


def a_lost_connection_takes_words_along(each: Walk) -> None:
    all_clean(each)
    written(each)
    cleaned(each, *ALL)
    for _ in range(3):
        each.write(OTHER)
        cleaned(each, 3)
        each.talk(2)
    each.switch(3, up=False)
    each.logs[3].up = True
    each.lose_files(3)
    again = each.nodes[3].reports
    again._number = 0
    each.switch(3, up=True)
    each.talk(3)
    before = each.now.mtro
    for _ in range(4):
        each.write(OTHER)
        cleaned(each, 1, 2)
        published(each)
        each.talk(8)
    assert each.now.mtro == before


def an_entry_of_an_earlier_term_changes_nothing(each: Walk) -> None:
    """Schedule 20: the same node leads again when its entry comes to the log, and there is a new member."""
    all_clean(each)
    written(each)
    for _ in range(3):
        each.write(OTHER)
        cleaned(each, *ALL)
        published(each)
    each.staged = 8.0
    proposed, before = each.proposed, each.now.mtro
    while each.proposed == proposed:
        each.talk(0.5)
    each.lead(2)
    each.join(4)
    each.catch_up(4)
    each.ingest(4, most=1)
    each.talk(3)
    assert not each.logs[4].excused
    each.lead(1)
    each.talk(8)
    assert each.now.mtro == before
    assert each.rejected


DRILLS: dict[str, tuple[Callable[[Walk], None], str]] = {
    "answered": (a_stopped_replica_holds_its_deletions, "overtaken: mtro"),
    "level_one": (level_one_holds_what_it_is_not_clean_of, "level one is clean below"),
    "less_clean": (a_less_clean_leader_publishes_nothing, "clean: a key is there twice on level one"),
    "in_step": (old_files_that_come_back_are_made_again, "table: node 3 shows"),
    "floor": (old_files_that_come_back_are_made_again, "table: node 3 shows"),
    "greatest": (a_lower_word_counts, "overtaken: mtro"),
    "stays": (a_lost_connection_takes_words_along, "overtaken: mtro"),
    "term": (an_entry_of_an_earlier_term_changes_nothing, "overtaken: mtro"),
}


@pytest.mark.parametrize("drill", dict.fromkeys(drill for drill, _ in DRILLS.values()))
def test_a_set_piece_ends_as_specified(drill: Callable[[Walk], None]) -> None:
    with Walk(1) as each:
        drill(each)
        each.check()
        each.world.check()


@pytest.mark.parametrize("rule", RULES)
def test_the_set_piece_of_a_rule_shows_that_it_is_broken(rule: str) -> None:
    drill, found = DRILLS[rule]
    with Walk(1, [rule]) as each, pytest.raises((Broken, Corruption), match=found):
        drill(each)


def test_random_walks_find_nothing_and_things_are_removed_in_them() -> None:
    walks = [walk(seed, 400) for seed in range(10)]
    assert [found for _, found in walks] == [None] * len(walks)
    assert sum(each.now.ripe > 0 for each, _ in walks) >= 2
    assert sum(each.proposed for each, _ in walks) >= 20
    assert any(log.resets for each, _ in walks for log in each.logs.values())
