"""Choose the parent of the next generation."""

import random

from utils.archive import get_saved_score, load_archive, load_metadata


def select_next_parent(domains, folder):
    found = {}
    for genid in load_archive(folder):
        scores = [get_saved_score(domain, folder, genid, "val", type="max") for domain in domains]
        if load_metadata(folder, genid).get("valid_parent", True) and None not in scores:
            found[genid] = sum(scores) / len(scores)
    return random.choice(list(found))
