"""One file per API family; `api_table` names them all."""
