"""What an auditor is handed about a model: provenance statement, bill of materials, lineage events, signatures."""
