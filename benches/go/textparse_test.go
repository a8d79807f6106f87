// The time that Prometheus' own parsers take for the /metrics responses of benches/exposition.rs.
//
//	go test -bench . -benchmem
package benches

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"os"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

var pages = []struct{ label, name string }{
	{"OneEngine", "vllm-0.33.0-dp1-single"},
	{"EightRanks", "vllm-0.33.0-dp8-multi"},
}

func page(b *testing.B, name string) []byte {
	file, err := os.Open("../../tests/data/pages/" + name + ".txt.gz")
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	reader, err := gzip.NewReader(file)
	if err != nil {
		b.Fatal(err)
	}
	body, err := io.ReadAll(reader)
	if err != nil {
		b.Fatal(err)
	}
	return body
}

// run parses the response repeatedly, and reports the best time in addition to the mean. On a
// machine that also does other work, only the best time is comparable.
func run(b *testing.B, read func(body []byte) error) {
	for _, page_ := range pages {
		body := page(b, page_.name)
		b.Run(page_.label, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			best := time.Duration(math.MaxInt64)
			for b.Loop() {
				began := time.Now()
				if err := read(body); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(began))
			}
			b.ReportMetric(float64(best.Nanoseconds()), "best-ns/op")
		})
	}
}

// BenchmarkTextparse iterates over all samples of a response with their labels, as a scrape of
// Prometheus does before it looks up a series by its bytes.
func BenchmarkTextparse(b *testing.B) {
	symbols := labels.NewSymbolTable()
	run(b, func(body []byte) error { return walk(body, symbols, nil) })
}

// BenchmarkTextparseLabels also splits every sample's labels, which is necessary to identify the
// subject of a sample.
func BenchmarkTextparseLabels(b *testing.B) {
	symbols := labels.NewSymbolTable()
	run(b, func(body []byte) error { return walk(body, symbols, &labels.Labels{}) })
}

func walk(body []byte, symbols *labels.SymbolTable, set *labels.Labels) error {
	parser := textparse.NewPromParser(body, symbols, false)
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry == textparse.EntrySeries {
			parser.Series()
			if set != nil {
				parser.Labels(set)
			}
		}
	}
}

// BenchmarkExpfmt parses a response into metric families, as most Go programs do.
func BenchmarkExpfmt(b *testing.B) {
	run(b, func(body []byte) error {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		_, err := parser.TextToMetricFamilies(bytes.NewReader(body))
		return err
	})
}
