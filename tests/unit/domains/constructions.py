"""Published constructions for problems of the domain ``math``: typed in, or made by their
definition.

Sources: the optimal Golomb rulers are those of OEIS A003022; the networks those of B. Dobbelaere's
list of the smallest sorting networks; the points and circles those of AlphaEvolve (data of
arXiv:2506.13131, CC-BY 4.0) and of EinsteinArena-new-SOTA (2026). The sources of the others are
where they are made.
"""

from __future__ import annotations

import re
from itertools import combinations, product
from math import sqrt
from typing import Any

Json = Any

RULERS = {
    10: "0 1 6 10 23 26 34 41 53 55",
    12: "0 2 6 24 29 40 43 55 68 75 76 85",
    14: "0 4 6 20 35 52 59 77 78 86 89 99 122 127",
    16: "0 1 4 11 26 32 56 68 76 115 117 134 150 163 168 177",
    18: "0 2 10 22 53 56 82 83 89 98 130 148 153 167 188 192 205 216",
    20: "0 1 8 11 68 77 94 116 121 156 158 179 194 208 212 228 240 253 259 283",
    22: "0 1 9 14 43 70 106 122 124 128 159 179 204 223 253 263 270 291 330 341 353 356",
    24: "0 9 33 37 38 97 122 129 140 142 152 191 205 208 252 278 286 326 332 353 368 384 403 425",
    26: "0 1 33 83 104 110 124 163 185 200 203 249 251 258 314 318 343 356 386 430 440 456 464 475 "
    "487 492",
    27: "0 3 15 41 66 95 97 106 142 152 220 221 225 242 295 330 338 354 382 388 402 415 486 504 523 "
    "546 553",
    28: "0 3 15 41 66 95 97 106 142 152 220 221 225 242 295 330 338 354 382 388 402 415 486 504 523 "
    "546 553 585",
}
NETWORKS = {
    4: "0:2 1:3 0:1 2:3 1:2",
    5: "0:3 1:4 0:2 1:3 0:1 2:4 1:2 3:4 2:3",
    6: "0:5 1:3 2:4 1:2 3:4 0:3 2:5 0:1 2:3 4:5 1:2 3:4",
    7: "0:6 2:3 4:5 0:2 1:4 3:6 0:1 2:5 3:4 1:2 4:6 2:3 4:5 1:2 3:4 5:6",
    8: "0:2 1:3 4:6 5:7 0:4 1:5 2:6 3:7 0:1 2:3 4:5 6:7 2:4 3:5 1:4 3:6 1:2 3:4 5:6",
    9: "0:3 1:7 2:5 4:8 0:7 2:4 3:8 5:6 0:2 1:3 4:5 7:8 1:4 3:6 5:7 0:1 2:4 3:5 6:8 2:3 4:5 6:7 1:2 "
    "3:4 5:6",
    10: "0:8 1:9 2:7 3:5 4:6 0:2 1:4 5:8 7:9 0:3 2:4 5:7 6:9 0:1 3:6 8:9 1:5 2:3 4:8 6:7 1:2 3:5 4:6 "
    "7:8 2:3 4:5 6:7 3:4 5:6",
    11: "0:9 1:6 2:4 3:7 5:8 0:1 3:5 4:10 6:9 7:8 1:3 2:5 4:7 8:10 0:4 1:2 3:7 5:9 6:8 0:1 2:6 4:5 "
    "7:8 9:10 2:4 3:6 5:7 8:9 1:2 3:4 5:6 7:8 2:3 4:5 6:7",
    12: "0:8 1:7 2:6 3:11 4:10 5:9 0:1 2:5 3:4 6:9 7:8 10:11 0:2 1:6 5:10 9:11 0:3 1:2 4:6 5:7 8:11 "
    "9:10 1:4 3:5 6:8 7:10 1:3 2:5 6:9 8:10 2:3 4:5 6:7 8:9 4:6 5:7 3:4 5:6 7:8",
    13: "0:12 1:10 2:9 3:7 5:11 6:8 1:6 2:3 4:11 7:9 8:10 0:4 1:2 3:6 7:8 9:10 11:12 4:6 5:9 8:11 "
    "10:12 0:5 3:8 4:7 6:11 9:10 0:1 2:5 6:9 7:8 10:11 1:3 2:4 5:6 9:10 1:2 3:4 5:7 6:8 2:3 4:5 6:7 "
    "8:9 3:4 5:6",
    16: "0:13 1:12 2:15 3:14 4:8 5:6 7:11 9:10 0:5 1:7 2:9 3:4 6:13 8:14 10:15 11:12 0:1 2:3 4:5 6:8 "
    "7:9 10:11 12:13 14:15 0:2 1:3 4:10 5:11 6:7 8:9 12:14 13:15 1:2 3:12 4:6 5:7 8:10 9:11 13:14 1:4 "
    "2:6 5:8 7:10 9:13 11:14 2:4 3:6 9:12 11:13 3:5 6:8 7:9 10:12 3:4 5:6 7:8 9:10 11:12 6:7 8:9",
}
STRASSEN = """
a11+a22 b11+b22 c11+c22|a21+a22 b11 c21-c22|a11 b12-b22 c12+c22|a22 b21-b11 c11+c21
a11+a12 b22 c12-c11|a21-a11 b11+b12 c22|a12-a22 b21+b22 c11
"""
LADERMAN = """
a11+a12+a13-a21-a22-a32-a33 b22 c12|a11-a21 b22-b12 c21+c22
a22 b12-b11+b21-b22-b23-b31+b33 c21|a21-a11+a22 b11-b12+b22 c12+c21+c22
a21+a22 b12-b11 c12+c22|a11 b11 c11+c12+c13+c21+c22+c31+c33
a31-a11+a32 b11-b13+b23 c13+c31+c33|a31-a11 b13-b23 c31+c33|a31+a32 b13-b11 c13+c33
a11+a12+a13-a22-a23-a31-a32 b23 c13|a32 b13-b11+b21-b22-b23-b31+b32 c31
a32-a13+a33 b22+b31-b32 c12+c31+c32|a13-a33 b22-b32 c31+c32
a13 b31 c11+c12+c13+c21+c23+c31+c32|a32+a33 b32-b31 c12+c32
a22-a13+a23 b23+b31-b33 c13+c21+c23|a13-a23 b23-b33 c21+c23|a22+a23 b33-b31 c13+c23
a12 b21 c11|a23 b32 c22|a21 b13 c23|a31 b12 c32|a33 b33 c33
"""
CIRCLES_32 = """
.09076163 .40381803 .090761620923837 .07310993 .92689178 .07310821268917801
.08745017 .22570576 .087381421261857 .24855246 .30880277 .093428060657193
.4079865 .06300614 .063006133699386 .47646318 .90136179 .09863820013617901
.89604966 .10309934 .10309932969006601 .9066386 .68096117 .09336139066386
.08962002 .76509474 .0895289910471 .06973669 .06965159 .06965158303484101
.40979823 .21756451 .09156283084371601 .25742466 .88393887 .11606111839388701
.09064689 .58506214 .090482500951749 .90294698 .30231577 .09623644037635501
.57265603 .10585396 .105853949414604 .74007588 .40129314 .09435083056491601
.57539962 .71183255 .115160168483982 .7367635 .21592191 .09104997089500201
.41096972 .40263617 .093512520648747 .88664452 .88667032 .113317128668286
.57582722 .49961748 .09705531029446801 .24962585 .49417195 .09194421080557799
.90546338 .49309632 .094507120549287 .67381348 .90149423 .09850576014942301
.24310147 .1077195 .10771948922805 .40815297 .5886157 .09248833075116601
.24737889 .6771266 .090994980900501 .75801377 .7532924 .07192969280703
.73526642 .06243992 .062439303756069 .57415412 .30715219 .095403150459684
.39239379 .75259664 .07223814277618501 .7439361 .58879735 .093166630683336
"""
RECTANGLE_21 = """
.12396161 .12396161 .12396159760383901 .0747415 .31647214 .07474149252585001
.12740019 .51163445 .127400177259981 .0747415 .70679675 .07474149252585001
.12396161 .89930729 .12396159760383901 .36284141 .11508312 .115083108491688
.25916864 .31452627 .10969588903041 .37244262 .51163445 .117642228235776
.25916864 .70874263 .10969588903041 .3628414 .90818577 .11508311849168701
.59083599 .11292169 .11292167870783101 .48083152 .30914434 .112032298796769
.62891008 .51163445 .138825206117478 .48083152 .71412455 .112032298796769
.59083598 .9103472 .11292168870783001 .67852787 .2919303 .086412051358794
.85766825 .39257159 .11906284809371401 .85766825 .6306973 .11906284809371401
.67852787 .73133859 .086412051358794 .83965981 .8861976 .13707128629287002
.83965981 .1370713 .13707128629287002
"""
ARENA_21 = """
0.5116344482348056 0.3478210227192743 0.13882522489312973
0.11292169820609282 0.38589511949460453 0.11292169820609428
0.1370712971167674 0.13707129711679192 0.13707129711678712
0.7313385918546085 0.29820323111822633 0.0864120632481395
0.7141245569692568 0.4958995816820243 0.11203231188848878
0.39257159189030094 0.11906285634451454 0.11906285634447007
0.5116344482348056 0.8493309125987313 0.12740019093165972
0.12396160773796733 0.8527694957924232 0.123961607737972
0.11508312623486056 0.6138896988100517 0.11508312623486333
0.899307288731644 0.8527694957924232 0.123961607737972
0.7067967538131774 0.9019896034585835 0.0747415000718126
0.5116344482348056 0.6042884846397301 0.11764223702735122
0.9081857702347507 0.6138896988100517 0.11508312623486333
0.7087426256539439 0.7175624677639059 0.10969590068455971
0.3145262708156674 0.7175624677639059 0.10969590068455971
0.30914433950035447 0.4958995816820243 0.11203231188848878
0.2919303046150028 0.29820323111822633 0.0864120632481395
0.6306973045793104 0.11906285634451454 0.11906285634447007
0.8861975993528439 0.13707129711679192 0.13707129711678712
0.31647214265643386 0.9019896034585835 0.0747415000718126
0.9103471982635185 0.38589511949460453 0.11292169820609428
"""  # not exact: accepted there with a tolerance
HEILBRONN_11 = """
.855969059106645 0 .2956511458813343 0 .5084386802534074 .7384882411813929
.4328408482561001 .32744948893270326 .6757703386424172 .2918847665632379
.13872648895775305 .2402813272304711 .11466976286752831 .05646046982765845
.647825572940666 .609984000793226 .3612735110422483 .6257440765539699
.5851055464997592 .13484874011447245 .9279845295533241 .12473445374461754
"""
HEILBRONN_13 = """
.7262503272554176 .4388890568372681 .5700515606090156 .3079437775114338
.6327871120895331 .5328479759933831 .6416207987804122 .31270211238697715
.5148490471164644 .3395137443428024 .5679223148906077 .5390628289790125
.495131275787839 .41235659338159497 .5800095646202962 .46771551597629857
.6499329141672348 .3910833999601802 .5584150294032443 .38652266849736683
.7052096091448784 .48702642736130247 .7055856016358004 .3662981535556451
.5096822331932992 .49886360333134927
"""
HEILBRONN_14 = """
0 0 1 -1.5955187211993326e-19 1.305022520450388 0.23881970191232607
1.2963031709154786 0.595094143262576 0.9786187448554199 0.8736425465574336 0 1
-0.6317342202702777 0.968394481133513 -1.1400223085607553 0.7181205282447601
-1.1328918819046867 0.42676980726361097 -0.610744596653763 0.11075408052950332
-0.34134368204128135 0.320315844879311 -0.3512171535567023 0.723747951168971
0.5367833468800595 0.3441198531115283 0.5308233821047847 0.5876452574179923
"""
RATIO_16 = """
-1.47975561 0.98098357 0.851848075446 0.07211038457 -0.734611602961 1.647887168108
0.151273184884 -1.789755757508 -0.715592895553 0.335960046209
-1.545477112098 -0.918920851705 1.733002311024 -0.451602182759
-1.823092802796 0.041771361583 1.73113866218 0.548396080844 1.155331899164 1.365981900229
0.404917250668 -0.822458136148 -0.580950766088 -0.654934245514 0.168877531232 0.802556300522
0.253914996742 1.798934055119 -0.834594831872 -1.622231866873 1.2637717 -1.33467785
"""
RATIO_SPACE_14 = """
-5.596123673583122 -5.695471111926107 4.959047320055149
5.116926601383272 -2.9088174983840958 -2.8844213258624003
-6.606159121469469 1.1976559300318508 4.205115060194249
0.33263279200499823 -9.151690403732108 3.5421854577228027
-0.43984530846509556 0.2175383405880955 7.387161767180721
-1.0482338026105975 5.032254234659363 2.3318033382908223
0.33760218404299963 -8.010249719722893 -3.371583323549962
4.745850590864617 -3.9828624854138783 5.248008874626355
-2.144088866983676 -2.3007882626834237 -6.588159606967483
-0.8091020398380586 -1.7732214204952712 0.6786858286172662
5.334738572382582 2.1672115465961803 1.9415133400809574
-6.83950764442355 -4.338724821681177 -1.8023709245292203
-5.346496436622179 2.4644877336392232 -2.570708726021154
1.5164799724062628 3.0213278117227174 -3.8718307541919557
"""
DESIGN = "012 013 024 035 045 125 134 145 234 235".split()  # a 2-(6,3,2) design


def rows(text: str, size: int) -> list[list[float]]:
    numbers = [float(word) for word in text.split()]
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]


def heilbronn_triangle() -> list[list[float]]:
    """Return the points of AlphaEvolve, moved from its triangle with equal sides."""
    found = [(x - y / sqrt(3), 2 * y / sqrt(3)) for x, y in rows(HEILBRONN_11, 2)]
    # the roundings of this map may leave the triangle by a unit of the last digit
    return [[max(0.0, x) * (1 - 1e-15), y * (1 - 1e-15)] for x, y in found]


def network(n: int) -> list[list[int]]:
    """Return a network; for 14 and 15 that of 16 channels without its last ones, which get the
    largest values.
    """
    pairs = [
        [int(i) for i in word.split(":")]
        for word in NETWORKS[max(n, 16) if n in (14, 15) else n].split()
    ]
    return [pair for pair in pairs if pair[1] < n]


def bilinear(text: str, size: int) -> list[list[list[int]]]:
    """Return the terms of an algorithm for square matrices, written as sums of entries."""
    return [
        [_coefficients(part, size) for part in term.split()]
        for term in text.strip().replace("\n", "|").split("|")
    ]


def _coefficients(sum_: str, size: int) -> list[int]:
    found = [0] * size**2
    for sign, row, column in re.findall(r"([+-]?)[abc](\d)(\d)", sum_):
        found[(int(row) - 1) * size + int(column) - 1] += -1 if sign == "-" else 1
    return found


def twice(terms: list[list[list[int]]]) -> list[list[list[int]]]:
    """Return Strassen's algorithm for blocks of 2 x 2, whose products are made by it too."""
    places = [
        (4 * (2 * (i // 2)) + 2 * (i % 2), 4 * (j // 2) + j % 2) for i in range(4) for j in range(4)
    ]

    def product_of(left: list[int], right: list[int]) -> list[int]:
        found = [0] * 16
        for (a, b), (x, y) in zip(places, product(left, right), strict=True):
            found[a + b] = x * y
        return found

    return [
        [product_of(x, y) for x, y in zip(one, other, strict=True)]
        for one, other in product(terms, terms)
    ]


def construction_a(n: int, blocks: list[tuple[int, ...]]) -> list[list[int]]:
    """Return the vectors with one entry 2 or -2, and those with 1 or -1 on a block.

    Source: Conway and Sloane, Sphere Packings, Lattices and Groups, chapter 5.
    """
    found = [[s if k == i else 0 for k in range(n)] for i in range(n) for s in (2, -2)]
    for block in blocks:
        for signs in product((1, -1), repeat=4):
            entries = dict(zip(block, signs, strict=True))
            found.append([entries.get(k, 0) for k in range(n)])
    return found


def steiner_10() -> list[tuple[int, ...]]:
    """Return the 30 blocks of the Steiner system S(3, 4, 10)."""
    starts = ((1, 2, 4, 5), (1, 2, 3, 7), (1, 3, 5, 8))
    return [tuple(sorted((x + i) % 10 for x in start)) for start in starts for i in range(10)]


def hamming_8() -> list[tuple[int, ...]]:
    """Return the 14 words of weight 4 of the extended Hamming code, as sets of places."""
    words: list[tuple[int, ...]] = [
        word for word in combinations(range(8), 4) if word[0] ^ word[1] ^ word[2] ^ word[3] == 0
    ]
    assert len(words) == 14
    return words


def quadric() -> list[list[int]]:
    """Return the 20 vectors of the elliptic quadric of the projective space PG(3, 3)."""
    return [
        list(x)
        for x in product(range(3), repeat=4)
        if any(x) and (x[0] * x[1] + x[2] ** 2 + x[3] ** 2) % 3 == 0
    ]


def cap_112() -> list[list[int]]:
    """Return the 112 vectors of Hill's cap of the projective space PG(5, 3), with both signs."""
    found = []
    for x in product(range(3), repeat=6):
        support = "".join(str(i) for i in range(6) if x[i])
        if support in DESIGN or (support == "012345" and x.count(2) % 2 == 0):
            found.append(list(x))
    return found


def cap_45() -> list[list[int]]:
    """Return the 45 points of Hill's cap outside of a hyperplane, as affine points."""
    for weights in product(range(3), repeat=6):
        values = [sum(w * y for w, y in zip(weights, x, strict=True)) % 3 for x in cap_112()]
        if weights[0] and values.count(0) == 22:
            return [x[1:] for x, v in zip(cap_112(), values, strict=True) if v == 1]
    raise AssertionError("no hyperplane has 11 points")


CONSTRUCTIONS: dict[str, Json] = {
    **{f"golomb-{n}": [int(x) for x in text.split()] for n, text in RULERS.items()},
    **{f"sorting-{n}": network(n) for n in range(4, 17)},
    "matmul-222": bilinear(STRASSEN, 2),
    "matmul-222-mod2": bilinear(STRASSEN, 2),
    "matmul-333": bilinear(LADERMAN, 3),
    "matmul-333-mod2": bilinear(LADERMAN, 3),
    "matmul-444": twice(bilinear(STRASSEN, 2)),
    "kissing-4": [
        [a if k == i else b if k == j else 0 for k in range(4)]
        for i, j in combinations(range(4), 2)
        for a, b in product((1, -1), repeat=2)
    ],
    "kissing-7": construction_a(
        7, [tuple(7 - x for x in reversed(word)) for word in hamming_8() if 0 not in word]
    ),
    "kissing-8": construction_a(8, hamming_8()),
    "kissing-9": construction_a(9, [block for block in steiner_10() if 9 not in block]),
    "capset-3": [
        list(x) for x in product(range(3), repeat=3) if (x[0] ** 2 + x[1] ** 2 - x[2]) % 3 == 0
    ],
    "capset-4": quadric(),
    "capset-5": cap_45(),
    "capset-6": cap_112(),
}
"""Answers that reach the record exactly."""

NEARLY: dict[str, tuple[Json, str]] = {
    "kissing-10": (construction_a(10, steiner_10()), "500"),
    "circles-32": (rows(CIRCLES_32, 3), "2.9379"),
    "rectangle-21": (rows(RECTANGLE_21, 3), "2.36583"),
    "heilbronn-triangle-11": (heilbronn_triangle(), "0.03652988"),
    "heilbronn-convex-13": (rows(HEILBRONN_13, 2), "0.030936889"),
    "heilbronn-convex-14": (rows(HEILBRONN_14, 2), "0.02783558"),
    "ratio-16": (rows(RATIO_16, 2), "12.88923"),
    "ratio-space-14": (rows(RATIO_SPACE_14, 3), "4.16585"),
}
"""Answers with decimals and their published digits; and one with a value below the record."""
