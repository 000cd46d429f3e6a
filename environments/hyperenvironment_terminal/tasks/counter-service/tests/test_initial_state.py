"""What the task begins with."""

import os


def test_the_service_is_there_and_its_script_is_not():
    assert os.path.isfile("/home/user/counter/counter.py")
    assert not os.path.exists("/home/user/counter/ctl")
