"""Control flow: bra, brx, ret, exit and trap are ends of blocks (kernel.py); here is the rest (PTX ISA, "Control Flow")."""
