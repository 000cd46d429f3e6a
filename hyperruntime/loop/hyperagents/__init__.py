"""Agent repositories of the HyperAgents layout: their commands, domains, reports and ensembles."""
