// A stand-in for libamdhip64.so.7: it has two devices, writes every call that matters to the file
// named by FAKE_HIP_LOG, one line of words each, and fails where FAKE_HIP_FAIL names the function,
// as in "hipModuleLoadData=209". It exists so that FlyDSL's real runtime library can be tested
// without a GPU.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 2
#define INVALID_DEVICE 101
#define MODULE(device) ((void*)(uintptr_t)(0x1000 + (device)))
#define FUNCTION(device) ((void*)(uintptr_t)(0x2000 + (device)))

static __thread int current;

static void say(const char* line) {
  FILE* log = fopen(getenv("FAKE_HIP_LOG"), "a");
  fprintf(log, "%s\n", line);
  fclose(log);
}

static int status(const char* name) {
  const char* fail = getenv("FAKE_HIP_FAIL");
  const size_t length = strlen(name);
  return fail && !strncmp(fail, name, length) && fail[length] == '=' ? atoi(fail + length + 1) : 0;
}

int hipGetDevice(int* device) {
  *device = current;
  return 0;
}

int hipSetDevice(int device) {
  if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
  current = device;
  return 0;
}

int hipModuleLoadData(void** module, const void* image) {
  char line[64];
  snprintf(line, sizeof line, "load device=%d image=%.4s", current, (const char*)image + 1);
  say(line);
  *module = MODULE(current);
  return status("hipModuleLoadData");
}

int hipModuleGetFunction(void** function, void* module, const char* name) {
  char line[256];
  snprintf(line, sizeof line, "function device=%d module=%p name=%s", current, module, name);
  say(line);
  *function = FUNCTION(current);
  return status("hipModuleGetFunction");
}

int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned lds, void* stream, void** params,
                          void** extra) {
  const int buffered = extra && extra[0] == (void*)1 && extra[2] == (void*)2 && extra[4] == (void*)3;
  const size_t size = buffered ? *(const size_t*)extra[3] : 0;
  char* line = malloc(512 + 2 * size);
  int at = sprintf(line,
                   "launch device=%d function=%p grid=%u,%u,%u block=%u,%u,%u lds=%u stream=%p "
                   "params=%d arguments=",
                   current, function, gx, gy, gz, bx, by, bz, lds, stream, params != NULL);
  for (size_t i = 0; i < size; ++i)
    at += sprintf(line + at, "%02x", ((const unsigned char*)extra[1])[i]);
  say(line);
  free(line);
  return status("hipModuleLaunchKernel");
}

int hipDeviceSynchronize(void) {
  char line[64];
  snprintf(line, sizeof line, "synchronize device=%d", current);
  say(line);
  return 0;
}

int hipModuleUnload(void* module) {
  char line[64];
  snprintf(line, sizeof line, "unload device=%d module=%p", current, module);
  say(line);
  return 0;
}

const char* hipGetErrorName(int error) {
  return error == 209 ? "hipErrorNoBinaryForGpu" : error == 1 ? "hipErrorInvalidValue" : NULL;
}

int hipGetLastError(void) { return 0; }

#define UNUSED(name)                    \
  int name(void) {                      \
    say("unexpected call of " #name);   \
    return 1;                           \
  }
UNUSED(hipEventCreateWithFlags)
UNUSED(hipEventDestroy)
UNUSED(hipEventRecord)
UNUSED(hipEventSynchronize)
UNUSED(hipFree)
UNUSED(hipHostGetDevicePointer)
UNUSED(hipHostRegister)
UNUSED(hipHostUnregister)
UNUSED(hipMalloc)
UNUSED(hipMemcpy)
UNUSED(hipMemcpyAsync)
UNUSED(hipMemset)
UNUSED(hipMemsetD16Async)
UNUSED(hipMemsetD32Async)
UNUSED(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)
UNUSED(hipStreamCreate)
UNUSED(hipStreamDestroy)
UNUSED(hipStreamSynchronize)
UNUSED(hipStreamWaitEvent)
