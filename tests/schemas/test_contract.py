"""The committed side of the contract is current: JSON Schemas, migrations, comments, states, ids."""

from __future__ import annotations

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from schemas import arrays, digests, json_schemas, states, table_docs
from schemas.events import EVENT_TYPES
from schemas.messages import MESSAGE_TYPES
from schemas.recipes import PRESETS, InvalidRecipe, recipe_named
from schemas.tables import metadata
from schemas.topics import MAX_EVENT_BYTES, topic_specs


@pytest.mark.parametrize("event_type", [*EVENT_TYPES, *MESSAGE_TYPES])
def test_the_committed_json_schema_is_current(event_type: str) -> None:
    assert json_schemas.file_of(event_type).read_text() == json_schemas.render(event_type), (
        "run: python -m schemas.json_schemas"
    )


def test_migrations_make_exactly_the_tables_of_the_contract(migrated_database_url: str) -> None:
    engine = create_engine(migrated_database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_every_table_view_and_column_has_a_comment(migrated_database_url: str) -> None:
    engine = create_engine(migrated_database_url)
    with engine.connect() as connection:
        bare = connection.execute(
            text(
                """
                SELECT c.relname, a.attname FROM pg_class c
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum >= 0 AND NOT a.attisdropped
                LEFT JOIN pg_description d ON d.objoid = c.oid AND d.objsubid = a.attnum
                WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v')
                  AND c.relname <> 'alembic_version' AND d.description IS NULL
                UNION
                SELECT c.relname, NULL FROM pg_class c
                LEFT JOIN pg_description d ON d.objoid = c.oid AND d.objsubid = 0
                WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v')
                  AND c.relname <> 'alembic_version' AND d.description IS NULL
                """
            )
        ).all()
    assert bare == []


def test_state_tables_are_closed() -> None:
    for transitions, names in (
        (states.SAMPLE_TRANSITIONS, states.SAMPLE_STATES),
        (states.EVALUATION_TRANSITIONS, states.EVALUATION_STATES),
    ):
        assert set(transitions) == set(names)
        assert {after for afters in transitions.values() for after in afters} <= set(names)
    assert not states.may_follow(states.SAMPLE_TRANSITIONS, "trained", "ready")


def test_ids_depend_on_their_parts_and_nothing_else() -> None:
    assert digests.content_id("turn", "ab", "c") != digests.content_id("turn", "a", "bc")
    assert digests.content_id("turn", "a", None) != digests.content_id("turn", "a", "None")
    assert digests.turn_id("tau", "s1", 3, "main") == "turn_" + digests.digest_of(["turn", "tau", "s1", 3, "main"])[:32]


def test_arrays_round_trip_and_refuse_overflow() -> None:
    ids = [0, 1, 2**31 - 1]
    assert arrays.unpack_ids(arrays.pack_ids(ids)).tolist() == ids
    values = np.array([-0.5, -1e-7, -30.25], dtype=np.float32)
    assert np.array_equal(arrays.unpack_floats(arrays.pack_floats(values)), values)
    assert arrays.pack_ids([]) == b""
    with pytest.raises(OverflowError, match="32 bits"):
        arrays.pack_ids([2**31])


def test_presets_work_and_differ() -> None:
    for name in PRESETS:
        recipe_named(name)
    assert len({recipe.digest() for recipe in PRESETS.values()}) == len(PRESETS)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"judge": {"quorum": 5}}, "quorum 5 must be between 1 and votes 3"),
        ({"judge": {"code": False, "votes": 0}}, "nothing could score"),
        ({"judge": None, "hint": None, "teacher": None}, "every turn would be dropped"),
        ({"teacher": {"top_k": 2}}, "at least 4"),
        ({"teacher": None}, "go together"),
        ({"judge": {"rules": [{"pattern": "(", "score": 1}]}}, r"'\(' is no regular expression"),
        ({"hint": {"patterns": ["[a"]}}, "is no regular expression"),
        ({"optimizer": {"lrr": 1}}, "no recipe field 'lrr'"),
        ({"optimizer": {"lr": "fast"}}, "Expected `float`"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_with_its_reason(overrides: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidRecipe, match=match):
        recipe_named("combine", overrides)


def test_a_recipes_words_do_not_change_its_digest_and_its_numbers_do() -> None:
    base = recipe_named("combine")
    assert recipe_named("combine", {"description": "other words"}).digest() == base.digest()
    assert recipe_named("combine", {"judge": {"votes": 5}}).digest() != base.digest()


def test_micro_batches_have_one_partition_and_facts_are_kept() -> None:
    specs = {spec.name: spec for spec in topic_specs(event_partitions=12)}
    assert specs["micro-batches"].partitions == 1
    assert specs["agent-events"].partitions == 12
    assert specs["agent-events"].config["retention.ms"] == "-1"
    assert specs["weights"].config["cleanup.policy"] == "compact"
    assert all(int(spec.config["max.message.bytes"]) > MAX_EVENT_BYTES for spec in specs.values())


def test_the_page_of_tables_is_current() -> None:
    assert table_docs.FILE.read_text() == table_docs.render(), "run: python -m schemas.table_docs"
    shown = {name for names in table_docs._ROOMS.values() for name in names}
    assert shown == set(metadata.tables)
