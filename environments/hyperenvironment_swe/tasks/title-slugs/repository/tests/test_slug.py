import unittest

from slugs import slug


class Slug(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("Hello World"), "hello-world")

    def test_accents(self):
        self.assertEqual(slug("Crème brûlée"), "creme-brulee")

    def test_runs_of_other_characters_are_one_hyphen(self):
        self.assertEqual(slug("Rock & Roll"), "rock-roll")
        self.assertEqual(slug("a -- b"), "a-b")

    def test_no_hyphen_at_the_ends(self):
        self.assertEqual(slug("  What? "), "what")
