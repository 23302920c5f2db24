"""A real pair of endpoints out of two wheels: llama.cpp's server and a small model, drafter off and drafter on."""
