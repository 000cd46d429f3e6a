import unittest

from splitbill import split_by_weight, split_evenly


class Evenly(unittest.TestCase):
    def test_no_cent_is_left(self):
        self.assertEqual(split_evenly(100, 4), [25, 25, 25, 25])

    def test_nobody(self):
        with self.assertRaises(ValueError):
            split_evenly(100, 0)

    def test_cents_that_are_left_are_paid_too(self):
        self.assertEqual(split_evenly(101, 4), [26, 25, 25, 25])
        self.assertEqual(sum(split_evenly(1000, 7)), 1000)


class ByWeight(unittest.TestCase):
    def test_it_is_exact(self):
        self.assertEqual(split_by_weight(90, [1, 2]), [30, 60])

    def test_the_largest_weights_pay_what_is_left(self):
        self.assertEqual(split_by_weight(100, [1, 1, 4]), [17, 16, 67])
        self.assertEqual(split_by_weight(101, [1, 5, 4, 5]), [6, 34, 27, 34])

    def test_bad_weights(self):
        for weights in ([], [0, 0], [1, -1]):
            with self.assertRaises(ValueError):
                split_by_weight(100, weights)
