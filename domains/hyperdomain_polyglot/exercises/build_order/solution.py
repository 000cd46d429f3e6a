def build_order(needs):
    left = {part: set(needs.get(part, ())) for part in {*needs, *(item for items in needs.values() for item in items)}}
    order = []
    while left:
        ready = min((part for part, wanted in left.items() if not wanted), default=None)
        if ready is None:
            raise ValueError("a circle")
        del left[ready]
        order.append(ready)
        for wanted in left.values():
            wanted.discard(ready)
    return order
