// engine.cpp -- moek in a C++ engine: an object that owns a layer's memory, a model by name, the engine's own switches.
//
//   cc -O3 -Iinclude -c examples/moek.c
//   c++ -std=c++17 -O3 -Iinclude examples/engine.cpp moek.o -o engine && ./engine
// or
//   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -DMOEK_QUANT=MOEK_BF16 -DEXAMPLE_CUDA -Iinclude
//        examples/engine.cpp examples/moek.cu -o engine && ./engine
//
//   ENGINE_MOE=cpu ./engine            demand a backend: cpu, sm80.  ENGINE_MOE_NOT=sm80: pass one over.
// The library reads no environment and throws nothing; what an engine maps to backend and exclude is its own business.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>
#include "example.h"

// From an environment variable to a number of MOEK_BACKEND_*; 0 if it is not set.
static int backend_from(const char *variable)
{
    const char *value = std::getenv(variable);
    if (!value || !*value) return 0;
    if (!std::strcmp(value, "cpu")) return MOEK_BACKEND_CPU;
    if (!std::strcmp(value, "sm90")) return MOEK_BACKEND_SM90;
    if (!std::strcmp(value, "sm80")) return MOEK_BACKEND_SM80;
    throw std::runtime_error(std::string(variable) + " is " + value + "; cpu or sm80");
}

// Memory where the plan works, for as long as the object lives.
struct Memory {
    const int device;
    void *const p;
    Memory(int d, size_t bytes, const void *from = nullptr) : device(d), p(example_new(d, from, bytes)) {}
    ~Memory() { example_free(device, p); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
};

// The plan is a value and owns nothing: a member like any other.  One workspace a stream would do for all layers.
class MoeLayer {
public:
    MoeLayer(const moek_config &config, const std::vector<uint16_t> &up, const std::vector<uint16_t> &down)
        : plan_(planned(config)), up_(plan_.device, 2 * up.size(), up.data()),
          down_(plan_.device, 2 * down.size(), down.data()), workspace_(plan_.device, moek_workspace_size(&plan_))
    {
        moek_weights w = {};
        w.w_up = up_.p;
        w.w_down = down_.p;
        if (moek_plan_bind(&plan_, &w) != MOEK_OK) throw std::runtime_error(plan_.why);
    }
    void run(moek_args args, moek_stream stream) const
    {
        char why[256] = "";
        args.workspace = workspace_.p;
        args.workspace_size = moek_workspace_size(&plan_);
        args.why = why;
        args.why_size = sizeof why;
        if (moek_run(&plan_, &args, stream) != MOEK_OK) throw std::runtime_error(why);
    }
    const moek_plan &plan() const { return plan_; }
private:
    static moek_plan planned(const moek_config &config)
    {
        moek_plan plan;
        if (moek_plan_init(&plan, &config) == MOEK_OK) return plan;
        std::string text(moek_explain(&config, nullptr, 0) + 1, '\0');            // every backend and row, and why not
        moek_explain(&config, &text[0], text.size());
        throw std::runtime_error(std::string(plan.why) + "\n" + text);
    }
    moek_plan plan_;
    Memory up_, down_, workspace_;
};

static std::vector<uint16_t> random_vector(size_t n, float scale, uint32_t seed)
{
    std::vector<uint16_t> v(n);
    example_fill(v.data(), n, scale, seed);
    return v;
}

int main() try {
    moek_config config = MOEK_OLMOE_7B;                // hidden, activation, routing, ... of the model; in small:
    config.inter /= 16; config.experts = 8; config.max_tokens = 16;
    config.backend = backend_from("ENGINE_MOE");
    config.exclude = EXAMPLE_EXCLUDE;
    if (int other = backend_from("ENGINE_MOE_NOT")) config.exclude |= 1u << other;

    const size_t hidden = config.hidden, inter = config.inter, experts = config.experts, tokens = 3, topk = config.topk;
    const auto up = random_vector(experts * 2 * inter * hidden, 0.04f, 1);
    const auto down = random_vector(experts * hidden * inter, 0.2f, 2), x = random_vector(tokens * hidden, 1, 3);
    const std::vector<float> logits(tokens * experts);                  // all equal: each of the 8 experts weighs 1/8
    const MoeLayer layer(config, up, down);
    const int device = layer.plan().device;
    char text[2000];
    moek_describe(&layer.plan(), text, sizeof text);
    std::fputs(text, stdout);

    const Memory x_there(device, 2 * x.size(), x.data()), y_there(device, 2 * x.size());
    const Memory logits_there(device, 4 * logits.size(), logits.data());
    moek_args args = {};
    args.tokens = static_cast<int>(tokens);
    args.x = x_there.p;
    args.y = y_there.p;
    args.router_logits = logits_there.p;
    layer.run(args, nullptr);

    std::vector<uint16_t> y(x.size());
    std::vector<double> want(hidden);
    example_get(device, y.data(), args.y, 2 * y.size());
    for (size_t e = 0; e < topk; e++)
        example_expert(want.data(), x.data(), &up[e * 2 * inter * hidden], &down[e * hidden * inter],
                       config.hidden, config.inter, 1.0 / 8);
    const double error = example_error(y.data(), want.data(), config.hidden);
    std::printf("off by %.2e of a plain loop: %s\n", error, error < 0.01 ? "ok" : "WRONG");
    return !(error < 0.01);
} catch (const std::exception &e) {
    std::fprintf(stderr, "engine: %s\n", e.what());
    return 1;
}
