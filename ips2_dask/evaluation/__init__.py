"""What the paper is measured with: data sets, scores, experiments and the report."""
