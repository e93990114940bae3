#include <algorithm>
#include <cctype>
#include <iostream>
#include <map>
#include <string>
#include <vector>

std::string lowered(std::string word) {
    for (char& c : word) {
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return word;
}

int main() {
    std::map<std::string, int> counts;
    std::string word;
    while (std::cin >> word) {
        counts[lowered(word)] += 1;
    }
    std::vector<std::pair<std::string, int>> ranked(counts.begin(), counts.end());
    std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
        return a.second > b.second;
    });
    for (const auto& [name, count] : ranked) {
        std::cout << count << " " << name << "\n";
    }
}
