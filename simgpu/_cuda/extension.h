// Included before each C++ source that torch.utils.cpp_extension compiles under `as_cuda`.
//
// A simulated tensor is one of PrivateUse1 for C++. In the source of an extension, and nowhere else,
// x.is_cuda() and kCUDA mean that. PyTorch's own headers are read first, and keep their meaning.
#pragma once
#include <torch/extension.h>
#define is_cuda() is_privateuseone()
#define kCUDA kPrivateUse1
