def inward_spiral(rows):
    rows, order = [list(row) for row in rows], []
    while rows and rows[0]:
        order += rows.pop(0)
        rows = [list(row) for row in zip(*rows)][::-1]
    return order
