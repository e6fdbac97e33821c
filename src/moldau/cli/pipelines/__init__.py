"""Commands for pipelines: `moldau pipeline VERB …`."""
