#!/bin/bash
# The reward is the share of what the script does right; the parts are in reward.json.
python3 -I /tests/check.py
