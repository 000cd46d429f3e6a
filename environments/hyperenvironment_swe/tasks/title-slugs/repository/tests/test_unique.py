import unittest

from slugs import unique_slugs


class Unique(unittest.TestCase):
    def test_different_titles(self):
        self.assertEqual(unique_slugs(["One", "Two"]), ["one", "two"])

    def test_the_same_title(self):
        self.assertEqual(unique_slugs(["One", "One", "one"]), ["one", "one-2", "one-3"])

    def test_a_numbered_name_may_be_taken(self):
        names = unique_slugs(["One 2", "One", "One", "One"])
        self.assertEqual(names, ["one-2", "one", "one-3", "one-4"])
        self.assertEqual(len(set(unique_slugs(["a", "a", "a-2", "a 2"]))), 4)
