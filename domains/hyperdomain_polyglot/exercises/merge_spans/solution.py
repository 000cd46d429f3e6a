def merge_spans(spans):
    merged = []
    for start, end in sorted(spans):
        if end < start:
            raise ValueError("a span ends before it starts")
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged
