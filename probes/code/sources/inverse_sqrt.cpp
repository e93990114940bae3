#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>

// Approximates 1 / sqrt(x) with integer arithmetic on the bits of a float.
float fastInverseSqrt(float x) {
    const float half = 0.5f * x;
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = 0x5f3759df - (bits >> 1);
    float y;
    std::memcpy(&y, &bits, sizeof y);
    y = y * (1.5f - half * y * y);
    return y;
}

int main() {
    float x;
    std::cout << "Number: ";
    while (std::cin >> x) {
        if (x <= 0) {
            std::cout << "must be positive\n";
            continue;
        }
        float exact = 1.0f / std::sqrt(x);
        float fast = fastInverseSqrt(x);
        std::cout << "fast " << fast << ", exact " << exact << "\n";
    }
    return 0;
}
