package lookupd

import (
	"fmt"
	"testing"
)

// However many models come and go, the labels that metrics get stay few, and
// nothing is lost.
func TestModelsAreBounded(t *testing.T) {
	models := modelCounters{}
	for i := range 3 * maxModels {
		models.add(fmt.Sprintf("m%d", i), &Counters{Lookups: 1})
	}
	models.add("m0", &Counters{Lookups: 1})
	var total uint64
	for _, c := range models {
		total += c.Lookups
	}
	if len(models) != maxModels+1 || total != 3*maxModels+1 || models["m0"].Lookups != 2 || models[otherModels].Lookups != 2*maxModels {
		t.Errorf("%d models, %d lookups in all, %d of others", len(models), total, models[otherModels].Lookups)
	}
}
