#include <stdexcept>
#include <vector>

struct Matrix {
    int rows, columns;
    std::vector<double> data;

    Matrix(int r, int c) : rows(r), columns(c), data(r * c, 0.0) {}

    double& at(int r, int c) { return data[r * columns + c]; }
    double at(int r, int c) const { return data[r * columns + c]; }
};

Matrix multiply(const Matrix& a, const Matrix& b) {
    if (a.columns != b.rows) {
        throw std::invalid_argument("shapes do not match");
    }
    Matrix out(a.rows, b.columns);
    for (int i = 0; i < a.rows; ++i) {
        for (int k = 0; k < a.columns; ++k) {
            const double factor = a.at(i, k);
            for (int j = 0; j < b.columns; ++j) {
                out.at(i, j) += factor * b.at(k, j);
            }
        }
    }
    return out;
}
