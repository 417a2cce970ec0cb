"""The ladder's Blackwell GEMMs in TIRx, TVM's tile language."""
