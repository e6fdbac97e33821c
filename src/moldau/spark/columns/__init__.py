"""Record batches ⇄ Arrow columns, in bulk: the only code of the pipeline that touches single records."""
