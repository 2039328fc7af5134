"""The Specs of paging: attention by block table, and the tables themselves."""
