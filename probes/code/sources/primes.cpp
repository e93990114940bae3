#include <cstdio>
#include <vector>

std::vector<int> primesBelow(int limit) {
    std::vector<bool> composite(limit, false);
    std::vector<int> primes;
    for (int n = 2; n < limit; ++n) {
        if (composite[n]) {
            continue;
        }
        primes.push_back(n);
        for (long m = 1L * n * n; m < limit; m += n) {
            composite[m] = true;
        }
    }
    return primes;
}

int main(int argc, char** argv) {
    int limit = 100;
    if (argc > 1) {
        std::sscanf(argv[1], "%d", &limit);
    }
    int sum = 0;
    for (int p : primesBelow(limit)) {
        std::printf("%d\n", p);
        sum += p;
    }
    std::printf("sum %d\n", sum);
    return 0;
}
