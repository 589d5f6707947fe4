// SPDX-License-Identifier: Apache-2.0
//
// The name of the copy being compiled: -DTX_ISA=avx2 gives the entry transducer_cpu_kernels_avx2().
#pragma once

#define TX_JOIN_AGAIN(a, b) a##b
#define TX_JOIN(a, b) TX_JOIN_AGAIN(a, b)
#define TX_QUOTE_AGAIN(a) #a
#define TX_QUOTE(a) TX_QUOTE_AGAIN(a)

#define TX_KERNELS_NAME TX_JOIN(transducer_cpu_kernels_, TX_ISA)
#define TX_ISA_NAME TX_QUOTE(TX_ISA)
