"""Reading Containerfiles and build contexts into steps, for engines without a builder."""
