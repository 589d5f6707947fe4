// SPDX-License-Identifier: Apache-2.0
//
// The one marker the vocabulary needs: TX_HD makes a function callable on the host and, when a CUDA
// compiler reads the header, on the device too. No CUDA header is included anywhere in core.
#pragma once

#if defined(__CUDACC__)
#define TX_HD __host__ __device__
#else
#define TX_HD
#endif
