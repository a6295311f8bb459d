package suite

import (
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/indexer"
)

func indexers() Part {
	return Part{
		Name: "indexer", Title: "The index of KV-cache events beside a peer's, the same events and questions by turns", Needs: []Need{needFile("build/peers/llmd", "scripts/setup.sh --with-indexers")},
		Quick: 120 * time.Second, Full: 60 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{
				s.Bench, "indexer", "--llmd", "build/peers/llmd", "--json", "--rounds", strconv.Itoa(by(s, 3, 9)), "--blocks", strconv.Itoa(by(s, 200_000, 1_000_000)),
				"--full", strconv.Itoa(by(s, 500_000, 5_000_000)), "--ask-rounds", strconv.Itoa(by(s, 3, 10)),
			}
		},
		Read: func(s *Setting) (*Found, error) { return readIndexer(s.Output("indexer")) },
	}
}

func readIndexer(path string) (*Found, error) {
	var r indexer.Result
	if err := readJSON(path, &r); err != nil {
		return nil, err
	}
	found := &Found{}
	for _, row := range r.Rows() {
		f := Figure{Name: row.What + ": " + row.System, Unit: row.Unit, Value: row.Value, Spread: &Spread{row.Low, row.High, tenths}}
		if row.Ours.Value != 0 {
			f.Ratio = &Ratio{Value: row.Ours.Value, To: "ours by this", Spread: ofInterval(row.Ours)}
		}
		found.Figures = append(found.Figures, f)
	}
	return found, nil
}
