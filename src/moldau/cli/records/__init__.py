"""Commands that write, print and measure records, and the one that dumps the files they are in."""
