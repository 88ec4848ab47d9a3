#pragma once
// The wheel ships LibTorch's Gloo headers but not Gloo's own. Only pointers to Gloo's types cross
// the interface that we use, so these declarations are enough. Never construct a Gloo type.
