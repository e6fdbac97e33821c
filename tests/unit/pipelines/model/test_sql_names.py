"""Tables that a SQL text reads."""

from __future__ import annotations

import pytest

from moldau.pipelines.model.sql_names import aggregates, groups, query_mistake, table_names


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM clicks", ["clicks"]),
        ("select page from Clicks c where x in (select x from users)", ["Clicks", "users"]),
        ("SELECT * FROM clicks, users u, orders WHERE a = b", ["clicks", "users", "orders"]),
        ("SELECT a, b FROM clicks GROUP BY a, b", ["clicks"]),
        ("SELECT * FROM clicks JOIN users USING (id) LEFT JOIN pages ON a = b", ["clicks", "users", "pages"]),
        ("SELECT * FROM (SELECT * FROM clicks) t, users", ["clicks", "users"]),
        ("WITH top AS (SELECT * FROM clicks) SELECT * FROM top", ["clicks"]),
        ("WITH a AS (SELECT 1), b (x) AS (SELECT * FROM a) SELECT * FROM b JOIN clicks", ["clicks"]),
        ("SELECT extract(YEAR FROM at), trim(BOTH ' ' FROM page) FROM clicks", ["clicks"]),
        ("SELECT 'a FROM b' -- FROM c\n FROM clicks /* FROM d */", ["clicks"]),
        ("SELECT * FROM `page views`", ["page views"]),
        ("SELECT * FROM clicks LATERAL VIEW explode(tags) t AS tag", ["clicks"]),
        ("SELECT * FROM clicks, LATERAL explode(tags) AS t(tag)", ["clicks"]),
        ("SELECT * FROM range(10)", []),
        ("SELECT * FROM VALUES (1, 2), (3, 4) AS t(a, b)", []),
        ("SELECT count(*) FROM clicks UNION ALL SELECT count(*) FROM users", ["clicks", "users"]),
        ("SELECT a IS DISTINCT FROM b FROM clicks", ["clicks"]),
        ("FROM clicks SELECT page", ["clicks"]),
        ("SELECT window(at, '1 minute') AS w FROM clicks GROUP BY window(at, '1 minute'), page", ["clicks"]),
        ("SELECT * FROM clicks WHERE EXISTS (SELECT 1 FROM users WHERE users.id = clicks.id)", ["clicks", "users"]),
        ("SELECT * FROM (clicks JOIN users USING (id))", ["clicks", "users"]),
        ("SELECT * FROM ((clicks JOIN users) JOIN (SELECT * FROM pages) p)", ["clicks", "users", "pages"]),
        ("SELECT * FROM clicks TABLESAMPLE (10 PERCENT), users", ["clicks", "users"]),
        ("SELECT * FROM clicks PIVOT (sum(a) FOR b IN ('x', 'y'))", ["clicks"]),
        ("SELECT * FROM STREAM clicks JOIN STREAM(users) JOIN stream AS s", ["clicks", "users", "stream"]),
        ("SELECT r'\\d\\' AS a, m['x'], transform(b, x -> x + 1)[0] FROM clicks GROUP BY ALL", ["clicks"]),
        ("SELECT * FROM clicks |> WHERE a > 1 |> JOIN users USING (id)", ["clicks", "users"]),
    ],
)
def test_tables_after_from_and_join_are_found(sql: str, names: list[str]) -> None:
    assert [found.name for found in table_names(sql)] == names
    assert query_mistake(sql) is None


def test_a_qualified_name_is_a_table_of_sparks() -> None:
    (found,) = table_names("SELECT * FROM spark_catalog.default.users")
    assert (found.name, found.is_qualified) == ("spark_catalog.default.users", True)


def test_the_position_is_where_the_name_begins() -> None:
    sql = "SELECT *\nFROM clikcs"
    assert sql[table_names(sql)[0].position :] == "clikcs"


@pytest.mark.parametrize(
    ("sql", "is_grouped", "is_aggregated"),
    [
        ("SELECT page FROM clicks -- GROUP BY page", False, False),
        ("SELECT page, count(*) FROM clicks group  by page", True, True),
        ("SELECT max(at) FROM clicks", False, True),
        ("SELECT 'GROUP BY', `count` FROM clicks", False, False),
    ],
)
def test_groups_and_aggregates_are_seen(sql: str, is_grouped: bool, is_aggregated: bool) -> None:
    assert (groups(sql), aggregates(sql)) == (is_grouped, is_aggregated)
