import pytest

from kvmill.simulator.host import HostPool


class Guest:
    host = 0


def test_the_least_recently_used_copy_goes_whole():
    pool, old, new = HostPool(10), Guest(), Guest()
    assert pool.put(old, 4)
    assert pool.put(new, 4)
    assert pool.put(new, 3)
    assert (old.host, new.host, pool.free, pool.dropped) == (0, 7, 3, 1)
    pool.check()


def test_a_copy_that_is_larger_than_the_pool_is_refused_and_what_was_there_of_it_goes():
    pool, guest = HostPool(10), Guest()
    assert pool.put(guest, 8)
    assert not pool.put(guest, 3)
    assert (guest.host, pool.free) == (0, 10)
    assert not HostPool(0).put(guest, 1)


def test_check_notices_a_lost_block():
    pool, guest = HostPool(10), Guest()
    pool.put(guest, 3)
    pool.free += 1
    with pytest.raises(AssertionError, match="free 8, held 3, total 10"):
        pool.check()
