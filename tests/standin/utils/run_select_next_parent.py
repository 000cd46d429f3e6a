"""Print the parent of the next generation, on the last line."""

import argparse

from select_next_parent import select_next_parent

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--domains", nargs="+", required=True, choices=["paper_review", "search_arena"]
    )
    parser.add_argument("--generate_output_dir", required=True)
    args = parser.parse_args()
    print("choosing")
    print(select_next_parent(args.domains, args.generate_output_dir))
