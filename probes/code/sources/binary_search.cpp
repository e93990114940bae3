#include <cassert>
#include <vector>

// First index whose value is not less than the key; values are sorted.
int lowerBound(const std::vector<int>& values, int key) {
    int low = 0;
    int high = static_cast<int>(values.size());
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (values[middle] < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int main() {
    std::vector<int> values = {2, 3, 5, 7, 11, 13};
    assert(lowerBound(values, 1) == 0);
    assert(lowerBound(values, 7) == 3);
    assert(lowerBound(values, 8) == 4);
    assert(lowerBound(values, 99) == 6);
    return 0;
}
