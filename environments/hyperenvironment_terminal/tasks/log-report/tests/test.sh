#!/bin/bash
# The reward is 1 for a report that is right, 0 for any other and for none.
if python3 -I /tests/check.py; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
