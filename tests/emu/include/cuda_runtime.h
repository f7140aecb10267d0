/* In the place of CUDA's own, where the emulator runs. */
#include "../emu_cuda.h"
