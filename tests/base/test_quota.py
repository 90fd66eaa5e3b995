"""How often something may be done, by each key and by all together."""

from __future__ import annotations

from headgate.base.quota import Quota, Rate

FREE = Rate(1e6, 10**6)


def test_a_burst_passes_and_then_the_rate() -> None:
    quota = Quota(Rate(2.0, 3), FREE)
    assert [quota.take("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert quota.take("a", 100.25) == 0.25
    assert quota.take("a", 100.5) == 0.0
    assert quota.take("a", 100.5) > 0


def test_keys_do_not_take_each_others_share() -> None:
    quota = Quota(Rate(1.0, 1), FREE)
    assert quota.take("a", 0.0) == 0.0
    assert quota.take("a", 0.0) > 0
    assert quota.take("b", 0.0) == 0.0


def test_all_together_have_a_bound() -> None:
    quota = Quota(Rate(1.0, 1), Rate(1.0, 2))
    assert [quota.take(key, 0.0) for key in "abc"] == [0.0, 0.0, 1.0]
    assert quota.take("c", 1.0) == 0.0, "a rejection counted against its key"


def test_many_keys_take_bounded_memory_and_are_still_counted() -> None:
    quota = Quota(Rate(1.0, 1), FREE, max_keys=3)
    assert [quota.take(str(key), 0.0) for key in range(4)] == [0.0] * 4
    assert quota.take("one more", 0.0) > 0, "beyond the bound they share one place"
    assert quota.take("later", 10.0) == 0.0
    assert len(quota._paid_until) <= 4
